# Read by CMake right after llama.cpp's own project() call, when set_up.py builds llama-cpp-python.
#
# llama-cpp-python asks for llama.cpp's helper library for its command-line tools and HTTP server. The Python package
# never loads it, and it is two fifths of the files to compile. A normal variable goes before the cache entry that asks.
set(LLAMA_BUILD_COMMON OFF)
