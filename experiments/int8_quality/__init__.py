"""What int8 weights cost in quality, measured against fp32."""
