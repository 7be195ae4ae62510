"""How fast the decoder itself runs on this CPU, without scheduler, sampling or HTTP."""
