"""POST /infill of llama.cpp, which editors call."""
