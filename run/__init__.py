"""Scripts of the library: each runs one module of `bert_tf.commands`."""
