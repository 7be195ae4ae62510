"""The live system and the simulator under the same requests, and how far they are apart."""
