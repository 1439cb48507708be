"""Sessions and workers on an engine, through the pools."""
