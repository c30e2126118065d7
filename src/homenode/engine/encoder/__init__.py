"""The process that makes rows of pictures, which the text model takes in places of embeddings."""
