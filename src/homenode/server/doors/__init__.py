"""The ways by which clients come in: addresses, certificates, other sites' pages, and the path before a
reverse proxy.
"""
