"""Integer contractions: how dequantised values are recognised, packed and read."""
