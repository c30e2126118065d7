"""Where steps run: in this process, or scripted for tests."""
