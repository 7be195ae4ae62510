"""Figures that papers print, and what the roofline makes of them."""
