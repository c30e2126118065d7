"""Files of media, such as pictures, read in processes of their own: the same for every kind of them."""
