/* Byte-pair merging of a piece of text: the rules of a vocabulary and their application in n log n. For
 * tokenizer.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Two neighbouring tokens @left, @right become @merged. The pair with the lowest @rank in the piece is merged
 * first; of equal ranks, the leftmost pair. */
struct bpe_rule {
    uint32_t left, right;
    uint32_t rank;
    uint32_t merged;
};

/* Sorts @rules for bpe_merge(). */
void bpe_sort_rules(struct bpe_rule *rules, size_t n_rules);

/* Scratch of bpe_merge(), grown as needed. Zeros: empty. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    struct bpe_candidate *heap;
    size_t capacity;
};
void bpe_scratch_deinit(struct bpe_scratch *s);

/**
 * bpe_merge() - apply the rules to @n tokens until no rule applies
 * @ids: in and out; @n > 0
 * @ret_n: number of tokens after merging
 *
 * Return: 0; -ENOMEM; -EOVERFLOW: more than 2^31 tokens.
 */
int bpe_merge(const struct bpe_rule *rules, size_t n_rules, struct bpe_scratch *s, uint32_t *ids, size_t n,
              size_t *ret_n);
