"""Samples to the inputs of a model.

``processor``      load the processor, tokenizer or image processor of a checkpoint
``builder``        ``InputBuilder``: samples to one batch of tensors, in the model's chat format
``batches``        a whole data set, batch by batch
``prefetch``       the same, made ahead in worker processes
``on_device``      a batch, copied to the device and dtype of a model
``token_groups``   visual, special, text or padding, for every position
``image_numbers``  which image of its sample a position belongs to
``image_marks``    positions of an image that an input marks, where no token id does
``vocabulary``     the tokenizer of a processor, its token ids, the text of a token
``chat``           the text that a model reads: its chat template, or a plain layout
``standard``       how the processors of transformers are called
``families``       how the others are called: one file a family
"""
