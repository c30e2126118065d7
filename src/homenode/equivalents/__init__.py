"""Settings of vLLM, llama.cpp, SGLang and LMCache, by their names there, and what each is here: data, and how words of
a command line are translated by it. Names alone are others'.
"""
