"""The process that makes rows of media, such as pictures, which the text model takes in places of embeddings."""
