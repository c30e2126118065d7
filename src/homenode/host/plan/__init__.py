"""Decisions about places, pure: from a host, an allowance and a demand to a plan. No file is read and no clock is
looked at here."""
