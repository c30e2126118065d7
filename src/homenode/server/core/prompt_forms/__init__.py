"""Forms of prompts: with a gap in their middle, as rows, cut where they do not fit."""
