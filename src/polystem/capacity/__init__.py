"""From numbers alone: how long a step takes, how many workers keep the floor, and who may begin.

Knows no engine, no message and no HTTP, and reads no clock: tokens, cells and seconds come in, decisions go out.
"""
