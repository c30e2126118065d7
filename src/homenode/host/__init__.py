"""The placement toolkit: what the machine is (`topology`), who runs where (`placement`), and making it true
(`binding`).

Needs the standard library only: neither NumPy nor the compiled core, nor anything of the engine.
"""
