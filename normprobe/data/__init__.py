"""Questions with images in, model inputs out.

``sample``      one question with its image
``images``      encoded bytes to an RGB picture, or a refusal
``tables``      TSV, JSON lines and parquet files to rows
``benchmark``   what a benchmark has to say about itself
``mmbench``, ``pope``, ``mmstar``: one benchmark each, over
``question_table``  tables of a key, a question and an image
``hub``         published data sets
``bundle``      the questions that travel inside the package
``draw``        which questions ``--limit`` keeps
``datasets``    ``open_data``: all of the above behind one name
``chat``        the text a model reads, through its chat template
``prefetch``    batches made by workers while the model runs
``batches``     the processor, its inputs and the group of every token
"""
