"""Scripts that export models; each runs one module of `bert_tf.commands`."""
