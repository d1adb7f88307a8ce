/* Prompts made of pieces of text: answers of subjects to them, for --ruler, and readings, for --retrieval. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct engine;
struct errmsg;
struct kv_cache;
struct progress;
struct subject;

/* Tokens of one piece of text. */
struct prompt_piece {
    uint32_t *tokens;
    size_t n;
};

int prompt_piece_init(struct prompt_piece *p, const struct engine *en, const char *text, struct errmsg *e);
void prompt_piece_deinit(struct prompt_piece *p);

/* A prompt under construction. */
struct prompt {
    uint32_t *tokens; /* [room] */
    size_t n, room;
};

int prompt_init(struct prompt *p, size_t room, struct errmsg *e);
void prompt_deinit(struct prompt *p);

/* Tokens before the text: 1 if the model has a BOS. */
size_t prompt_bos(const struct engine *en);

/* Empties the prompt, then puts the BOS of a model that has one. */
void prompt_begin(struct prompt *p, const struct engine *en);

/* Appends tokens; there must be room for them. */
void prompt_put(struct prompt *p, const uint32_t *tokens, size_t n);

#define PROMPT_ANSWER_BYTES 1024

/* Where the progress line stands: each answer counts the tokens of its prompt. */
struct prompt_progress {
    struct progress *p;
    double done;
};

/* Reads a prompt into an empty cache, in pieces as generation_run() does. @pp: advanced by its tokens. */
int prompt_read(struct engine *en, struct kv_cache *cache, const struct prompt *p, struct prompt_progress *pp,
                struct errmsg *e);

/**
 * prompt_ask() - let a subject continue a prompt greedily
 * @n_tokens: at most; the end-of-text token ends the answer
 * @pp:       advanced by the tokens of the prompt
 * @ret_text: terminated; longer text is cut
 */
int prompt_ask(struct engine *en, struct subject *s, const struct prompt *p, size_t n_tokens,
               struct prompt_progress *pp, char ret_text[static PROMPT_ANSWER_BYTES], struct errmsg *e);
