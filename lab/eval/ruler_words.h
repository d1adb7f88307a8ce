/* Words and sentences of the project's own, for ruler_text.c. */
#pragma once

/* Common nouns, all different; none of them is in the sentences. */
enum { RULER_NOUNS = 300 };
extern const char *const ruler_nouns[RULER_NOUNS];

/* Sentences of the filler; they contain no number. */
enum { RULER_SENTENCES = 24 };
extern const char *const ruler_sentences[RULER_SENTENCES];
