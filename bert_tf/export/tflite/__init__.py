"""TFLite builds: convert, quantize, measure, describe."""
