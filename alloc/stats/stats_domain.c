/*
 * Sources that stay apart in statistics: their moments, and how they are added up; see stats.h.
 *
 * A domain is one source, or the rest: small sources that were added up when there were more than
 * STATS_DOMAINS_MAX. Domains are sorted, so that the same sources give the same order.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats_internal.h"
#include "base/errmsg.h"

int stats_domain_compare(const struct stats_domain *a, const struct stats_domain *b)
{
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return memcmp(a->digest, b->digest, sizeof(a->digest));
}

int stats_begin_source(struct stats *s, uint32_t kind, const uint8_t digest[static DIGEST_BYTES],
                       struct errmsg *e)
{
    if (kind > SOURCE_REST)
        return fail(e, -EINVAL, "a source of unknown kind %u", kind);
    if (s->window.next_layer != 0)
        return fail(e, -EINVAL, "a source begins between windows: layers %u to %u of this one are missing",
                    s->window.next_layer, s->o.geometry.n_layers - 1);

    s->next = (struct stats_domain){.kind = kind};
    if (kind != SOURCE_REST)
        memcpy(s->next.digest, digest, sizeof(s->next.digest));
    return 0;
}

uint32_t stats_domains(const struct stats *s)
{
    return s->n_domains;
}

void stats_domain_info(const struct stats *s, uint32_t domain, struct stats_domain_info *ret)
{
    const struct stats_domain *from = &s->domains[domain];

    *ret = (struct stats_domain_info){.kind = from->kind, .n_tokens = from->n_tokens};
    memcpy(ret->digest, from->digest, sizeof(ret->digest));
    for (size_t i = 0; i < s->n_held; i++)
        ret->n_samples += s->domain_of[i] == domain;
}

/* Samples of domains from @first on get the number @change higher. */
static void stats_domain_renumber(struct stats *s, uint32_t first, int change)
{
    for (size_t i = 0; i < s->n_held; i++)
        if (s->domain_of[i] >= first)
            s->domain_of[i] = (uint8_t) (s->domain_of[i] + change);
}

/* Makes room for an empty domain at its place in the order. There is one free. */
static int stats_domain_insert(struct stats *s, const struct stats_domain *id, uint32_t *ret_domain)
{
    size_t n_hs = head_side_count(&s->o.geometry), d = s->o.geometry.d;
    struct stats_domain x = {.kind = id->kind};
    uint32_t at = 0;

    memcpy(x.digest, id->digest, sizeof(x.digest));
    x.mean = calloc(n_hs * d, sizeof(double));
    x.scatter = calloc(n_hs * d * d, sizeof(double));
    if (!x.mean || !x.scatter) {
        free(x.mean);
        free(x.scatter);
        return -ENOMEM;
    }

    while (at < s->n_domains && stats_domain_compare(&s->domains[at], &x) < 0)
        at++;
    memmove(&s->domains[at + 1], &s->domains[at], (s->n_domains - at) * sizeof(x));
    s->domains[at] = x;
    s->n_domains++;
    stats_domain_renumber(s, at, 1);
    *ret_domain = at;
    return 0;
}

/* Adds moments to those of a domain. */
static void stats_domain_add(const struct stats *s, struct stats_domain *to, const struct stats_domain *from)
{
    size_t d = s->o.geometry.d;

    for (size_t hs = 0; hs < head_side_count(&s->o.geometry); hs++)
        stats_merge_moments(d, to->n_tokens, to->mean + hs * d, to->scatter + hs * d * d, from->n_tokens,
                            from->mean + hs * d, from->scatter + hs * d * d);
    to->n_tokens += from->n_tokens;
}

static uint32_t stats_domain_smallest(const struct stats *s)
{
    uint32_t least = 0;

    for (uint32_t i = 1; i < s->n_domains; i++)
        if (s->domains[i].kind != SOURCE_REST && s->domains[i].n_tokens < s->domains[least].n_tokens)
            least = i;
    return least;
}

/* Makes the smallest domain the rest, which is the last in the order. */
static void stats_domain_make_rest(struct stats *s)
{
    uint32_t from = stats_domain_smallest(s), last = s->n_domains - 1;
    struct stats_domain x = s->domains[from];

    for (size_t i = 0; i < s->n_held; i++)
        if (s->domain_of[i] == from)
            s->domain_of[i] = (uint8_t) (last + 1);
    memmove(&s->domains[from], &s->domains[from + 1], (last - from) * sizeof(x));
    stats_domain_renumber(s, from + 1, -1);
    memset(x.digest, 0, sizeof(x.digest));
    x.kind = SOURCE_REST;
    s->domains[last] = x;
}

int stats_domain_get(struct stats *s, const struct stats_domain *id, uint32_t *ret_domain)
{
    for (uint32_t i = 0; i < s->n_domains; i++)
        if (stats_domain_compare(&s->domains[i], id) == 0) {
            *ret_domain = i;
            return 0;
        }

    if (s->n_domains < STATS_DOMAINS_MAX)
        return stats_domain_insert(s, id, ret_domain);
    if (s->domains[s->n_domains - 1].kind != SOURCE_REST)
        stats_domain_make_rest(s);
    *ret_domain = s->n_domains - 1;
    return 0;
}

void stats_domain_sum(struct stats *s)
{
    size_t n_hs = head_side_count(&s->o.geometry), d = s->o.geometry.d;
    struct stats_domain sum = {.mean = s->mean, .scatter = s->scatter};

    memset(s->mean, 0, n_hs * d * sizeof(*s->mean));
    memset(s->scatter, 0, n_hs * d * d * sizeof(*s->scatter));
    for (uint32_t i = 0; i < s->n_domains; i++)
        stats_domain_add(s, &sum, &s->domains[i]);
}

int stats_domain_merge(struct stats *s, const struct stats *other, uint32_t *ret_map)
{
    uint32_t order[STATS_DOMAINS_MAX], to;

    /* the largest ones first: if there are too many, the small ones are added up */
    for (uint32_t i = 0; i < other->n_domains; i++) {
        uint32_t at = i;

        for (; at > 0 && other->domains[order[at - 1]].n_tokens < other->domains[i].n_tokens; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }

    for (uint32_t i = 0; i < other->n_domains; i++) {
        int r = stats_domain_get(s, &other->domains[order[i]], &to);

        if (r < 0)
            return r;

        stats_domain_add(s, &s->domains[to], &other->domains[order[i]]);
    }

    for (uint32_t i = 0; i < other->n_domains; i++) { /* numbers are final now */
        ret_map[i] = s->n_domains - 1;                /* the rest */
        for (uint32_t j = 0; j < s->n_domains; j++)
            if (stats_domain_compare(&s->domains[j], &other->domains[i]) == 0)
                ret_map[i] = j;
    }

    return 0;
}
