"""English sentences of differing length, and their token ids for a BERT-like model."""
import numpy as np

# From one word to three dozen, so that a padded batch has long and short rows. The first eight are
# four pairs close in meaning: (0, 1), (2, 3), (4, 5), (6, 7).
SENTENCES = (
    "A cat is sleeping on the warm windowsill.",
    "The kitten naps in the sun by the window.",
    "How do I reset the password of my account?",
    "I forgot my password and need a new one.",
    "The train to the coast leaves at half past six.",
    "At 6:30 the seaside train departs.",
    "Interest rates rose again after the central bank's meeting on Thursday.",
    "On Thursday the central bank decided to raise interest rates once more.",
    "Hello.",
    "Rain.",
    "Why not?",
    "She laughed.",
    "Close the door, please.",
    "Nobody answered the telephone.",
    "Bread needs flour, water, salt and time.",
    "The river froze early that year.",
    "Our flight was cancelled because of heavy fog.",
    "He keeps bees behind the old brick schoolhouse.",
    "Sorting a list of n numbers by comparison takes n log n steps.",
    "The museum is free on the first Sunday of every month.",
    "Without a map we walked north until the path disappeared among the pines.",
    "My grandmother's recipe asks for two cups of sugar, which is one too many.",
    "The committee will publish its findings in March, provided that the auditors agree.",
    "A matrix multiplication reads each element many times, so keeping it close to the processor pays.",
    "They repainted the lighthouse red and white, although the fishermen had asked for black and yellow.",
    "When the orchestra finally began to play, the rain on the tin roof almost drowned out the strings.",
    "Only three of the eleven samples contained measurable traces of lead, all of them from the same well.",
    "The new bridge carries twice the traffic of the old one, yet it cost less and was finished four months early.",
    "If you water the tomatoes in the evening rather than at noon, less is lost to the heat and the roots grow deeper.",
    "After a long argument about who had left the gate open, we found the goats standing calmly in the "
    "neighbour's kitchen.",
    "The surveyor measured the field a second time, because the first figures, written in pencil on a wet "
    "page, could be read as either sevens or ones.",
    "Having promised to write every week, she sent exactly two letters in six years: the first described "
    "the weather in some detail, and the second, which arrived much later, apologised for the first.",
)


def tokenize(tokenizer_json, sentences=SENTENCES):
    """Tokenise with the file at `tokenizer_json`, padded to the longest of `sentences`.

    Returns {"input_ids", "attention_mask", "token_type_ids"}, each an int64 array [sentences, tokens];
    the mask is 1 on real tokens and 0 on padding.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    # The file may ask for a fixed length; the tests want the length to follow the sentences.
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")
    encodings = tokenizer.encode_batch(list(sentences))
    return {
        "input_ids": np.array([encoding.ids for encoding in encodings], dtype=np.int64),
        "attention_mask": np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64),
        "token_type_ids": np.array([encoding.type_ids for encoding in encodings], dtype=np.int64),
    }
