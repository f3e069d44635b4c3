"""Data sets to samples: each sample is one question with its image.

``data_set``        ``open_data``: a data set by name or path, and ``DataSet``, which is iterated
``sample``          one question with its image
``region``          regions of a picture, and words that mean one
``question``        one question before its row is read, and the questions of one file or table

Where questions come from:

``benchmarks``      every benchmark that ``--data`` can name, one entry each
``hub``             published data sets
``local``           local copies: which benchmark a file or folder holds
``saved_folder``    folders of ``Dataset.save_to_disk``
``bundle``          the questions inside the package
``prompts``         prompts of one's own: text, or JSON lines of image and prompt
``image_folder``    images of one's own, each with the same prompt

How rows are read:

``formats``         TSV, JSON lines, parquet and text files to rows
``cells``           checks of columns and cells
``question_table``  tables of a question, an image and options
``json_benchmark``  official files that are one JSON list: OCRBench, SEED-Bench-2-Plus
``referring``       referring expressions with their boxes: RefCOCO as JSON
``referents``       the cells of a word and its box
``json_questions``  JSON lines: prompts of one's own, or
``pope_lines``      POPE's official files
``wording``         the prompt: a template over the cells of a row
``keys``            what identifies a row
``images``          encoded bytes to an RGB picture, or a refusal
``bad_rows``        where a bad row stands, and whether it ends the run or is skipped

Which questions are taken:

``draw``            those that ``--limit`` keeps
``paper_samples``   the paper's 1000
"""
