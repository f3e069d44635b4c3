"""Samples to the inputs of a model.

``processor``     load the processor, tokenizer or image processor of a checkpoint; token ids, texts
``chat``          the text that a model reads: its chat template, or a plain layout
``standard``      how processors are called
``inputs_file``   Python that says how one family of models takes its inputs
``families``      the families that are not called like others: an inputs file each
``builder``       ``InputBuilder``: samples to one batch of tensors
``token_groups``  visual, special, text or padding, and the image, of every position
``prefetch``      a whole data set, batch by batch, made ahead in worker processes
``on_device``     a batch where its model is, and which of its inputs hold pixels
"""
