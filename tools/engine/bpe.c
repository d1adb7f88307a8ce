/*
 * Byte-pair merging; see bpe.h.
 *
 * The symbols of the piece form a doubly linked list; every neighbouring pair with a rule is in a heap by
 * (rank, position). A merge changes two pairs; their old entries stay in the heap and are recognised as stale
 * when popped, since their pair no longer exists. Each merge adds at most two entries, so a piece of n bytes
 * needs at most 3 n entries: one allocation per piece size, and n log n steps for any text.
 */
#include "tools/engine/bpe.h"

#include "base/checked.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NO_SYMBOL UINT32_MAX

struct bpe_symbol {
    uint32_t id;
    uint32_t previous, next; /* NO_SYMBOL at the ends */
    bool gone;               /* merged into the previous symbol */
};

struct bpe_candidate {
    uint32_t rank, left;        /* the heap's order */
    uint32_t left_id, right_id; /* the pair when the entry was added */
    uint32_t merged;
};

static int bpe_by_pair(const void *a, const void *b)
{
    const struct bpe_rule *x = a, *y = b;

    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    if (x->right != y->right)
        return x->right < y->right ? -1 : 1;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

void bpe_sort_rules(struct bpe_rule *rules, size_t n_rules)
{
    qsort(rules, n_rules, sizeof(*rules), bpe_by_pair);
}

/* The first rule of the pair: the lowest rank if the file has it twice. */
static const struct bpe_rule *bpe_find_rule(const struct bpe_rule *rules, size_t n_rules, uint32_t left,
                                            uint32_t right)
{
    size_t low = 0, high = n_rules;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct bpe_rule *r = &rules[mid];

        if (r->left < left || (r->left == left && r->right < right))
            low = mid + 1;
        else
            high = mid;
    }

    if (low < n_rules && rules[low].left == left && rules[low].right == right)
        return &rules[low];

    return NULL;
}

static bool bpe_before(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->left < b->left);
}

static void bpe_heap_push(struct bpe_candidate *heap, size_t *n, struct bpe_candidate c)
{
    size_t i = (*n)++;

    while (i > 0 && bpe_before(&c, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }

    heap[i] = c;
}

static struct bpe_candidate bpe_heap_pop(struct bpe_candidate *heap, size_t *n)
{
    struct bpe_candidate top = heap[0], last = heap[--*n];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= *n)
            break;
        if (child + 1 < *n && bpe_before(&heap[child + 1], &heap[child]))
            child++;
        if (!bpe_before(&heap[child], &last))
            break;

        heap[i] = heap[child];
        i = child;
    }

    heap[i] = last;
    return top;
}

static int bpe_reserve(struct bpe_scratch *s, size_t n)
{
    struct bpe_symbol *symbols;
    struct bpe_candidate *heap;
    size_t heap_bytes;

    if (n <= s->capacity)
        return 0;
    if (!checked_mul3(n, 3, sizeof(*heap), &heap_bytes))
        return -EOVERFLOW;

    symbols = realloc(s->symbols, n * sizeof(*symbols));
    if (!symbols)
        return -ENOMEM;

    s->symbols = symbols;
    heap = realloc(s->heap, heap_bytes);
    if (!heap)
        return -ENOMEM;

    s->heap = heap;
    s->capacity = n;
    return 0;
}

void bpe_scratch_deinit(struct bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

/* Adds the pair whose left half is @left to the heap, if it has a rule. */
static void bpe_consider(const struct bpe_rule *rules, size_t n_rules, struct bpe_scratch *s, size_t *n_heap,
                         uint32_t left)
{
    uint32_t right = left == NO_SYMBOL ? NO_SYMBOL : s->symbols[left].next;
    const struct bpe_rule *rule;

    if (right == NO_SYMBOL)
        return;

    rule = bpe_find_rule(rules, n_rules, s->symbols[left].id, s->symbols[right].id);
    if (rule)
        bpe_heap_push(s->heap, n_heap,
                      (struct bpe_candidate){.rank = rule->rank,
                                             .left = left,
                                             .left_id = rule->left,
                                             .right_id = rule->right,
                                             .merged = rule->merged});
}

static bool bpe_stale(const struct bpe_symbol *symbols, const struct bpe_candidate *c)
{
    const struct bpe_symbol *left = &symbols[c->left];

    return left->gone || left->id != c->left_id || left->next == NO_SYMBOL ||
           symbols[left->next].id != c->right_id;
}

int bpe_merge(const struct bpe_rule *rules, size_t n_rules, struct bpe_scratch *s, uint32_t *ids, size_t n,
              size_t *ret_n)
{
    size_t n_heap = 0, n_left = 0;
    int r;

    if (n > INT32_MAX)
        return -EOVERFLOW;

    r = bpe_reserve(s, n);
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < n; i++)
        s->symbols[i] = (struct bpe_symbol){
            .id = ids[i], .previous = i > 0 ? i - 1 : NO_SYMBOL, .next = i + 1 < n ? i + 1 : NO_SYMBOL};
    for (uint32_t i = 0; i < n; i++)
        bpe_consider(rules, n_rules, s, &n_heap, i);

    while (n_heap > 0) {
        struct bpe_candidate c = bpe_heap_pop(s->heap, &n_heap);
        struct bpe_symbol *left = &s->symbols[c.left], *right;

        if (bpe_stale(s->symbols, &c))
            continue;

        right = &s->symbols[left->next];
        left->id = c.merged;
        left->next = right->next;
        right->gone = true;
        if (right->next != NO_SYMBOL)
            s->symbols[right->next].previous = c.left;
        bpe_consider(rules, n_rules, s, &n_heap, left->previous);
        bpe_consider(rules, n_rules, s, &n_heap, c.left);
    }

    for (uint32_t i = 0; i != NO_SYMBOL; i = s->symbols[i].next)
        ids[n_left++] = s->symbols[i].id;
    *ret_n = n_left;
    return 0;
}
