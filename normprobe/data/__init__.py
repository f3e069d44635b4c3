"""Questions with images in, model inputs out.

``sample``      one question with its image
``images``      encoded bytes to an RGB picture, or a refusal
``bad_rows``    where a bad row stands, and whether it ends the run or is left out
``tables``      TSV, JSON lines, parquet and text files to rows
``keys``        what identifies a row
``benchmark``   what a benchmark has to say about itself
``mmbench``, ``pope``, ``mmstar``, ``seedbench2plus``, ``ocrbench``, ``scienceqa``, ``ai2d``: one
                benchmark each, over
``question_table``  tables of a question, an image and options
``benchmarks``  all of them by name
``prompts``, ``image_folder``: prompts and images of one's own
``hub``, ``local``, ``bundle``: published data sets, local copies, what travels in the package
``draw``, ``paper``: which questions ``--limit`` keeps, and which are the paper's
``datasets``    ``open_data``: all of the above behind one name
``chat``        the text a model reads, through its chat template
``prefetch``    batches made by workers while the model runs
``batches``     the processor, its inputs and the group of every token
"""
