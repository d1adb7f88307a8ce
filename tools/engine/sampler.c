/* Choosing the next token, and comparing distributions; see sampler.h. Sums are in binary64, since
 * vocabularies are long. */
#include "tools/engine/sampler.h"

#include <assert.h>
#include <math.h>
#include <sodium.h>
#include <string.h>

uint32_t sampler_greedy(const float *logits, size_t n_vocab)
{
    size_t best = 0;

    for (size_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (uint32_t) best;
}

void sampler_seed(struct sampler_state *st, uint64_t seed)
{
    st->s[0] = seed;
    st->s[1] = 0; /* draws so far */
}

/* [0, 1): libsodium's generator, keyed with the seed and the number of the draw. */
static double sampler_draw(struct sampler_state *st)
{
    unsigned char key[randombytes_SEEDBYTES] = {0};
    uint64_t bits;

    memcpy(key, st->s, sizeof(st->s));
    st->s[1]++;
    randombytes_buf_deterministic(&bits, sizeof(bits), key);
    return (double) (bits >> 11) * 0x1p-53;
}

/* exp((x - max) / temperature) in binary32: its relative error of 2^-24 is nothing beside sampling. */
static float sampler_weight(float x, float max, float inverse)
{
    return expf((x - max) * inverse);
}

/* The sums of blocks are kept, so that each weight is computed once, and those of one block twice. */
uint32_t sampler_softmax(const float *logits, size_t n_vocab, float temperature, struct sampler_state *st)
{
    enum { BLOCKS = 512 };
    size_t block = (n_vocab + BLOCKS - 1) / BLOCKS, at = 0;
    uint32_t best = sampler_greedy(logits, n_vocab);
    float max = logits[best], inverse = 1.0f / temperature;
    double sums[BLOCKS] = {0}, sum = 0, left;

    assert(temperature > 0.0f);
    for (size_t i = 0; i < n_vocab; i++)
        sums[i / block] += (double) sampler_weight(logits[i], max, inverse);
    for (size_t i = 0; i < BLOCKS; i++)
        sum += sums[i];

    left = sampler_draw(st) * sum;
    while (at + 1 < BLOCKS && left >= sums[at])
        left -= sums[at++];
    for (size_t i = at * block; i < n_vocab && i < (at + 1) * block; i++) {
        left -= (double) sampler_weight(logits[i], max, inverse);
        if (left < 0.0)
            return (uint32_t) i;
    }

    return best; /* the sum was rounded below the draw */
}

/* log sum exp, without overflow */
static double sampler_log_sum(const float *logits, size_t n_vocab)
{
    double max = (double) logits[sampler_greedy(logits, n_vocab)], sum = 0.0;

    for (size_t i = 0; i < n_vocab; i++)
        sum += exp((double) logits[i] - max);
    return max + log(sum);
}

double sampler_nll(const float *logits, size_t n_vocab, uint32_t token)
{
    assert(token < n_vocab);
    return sampler_log_sum(logits, n_vocab) - (double) logits[token];
}

double sampler_kl(const float *logits_p, const float *logits_q, size_t n_vocab)
{
    double log_p = sampler_log_sum(logits_p, n_vocab), log_q = sampler_log_sum(logits_q, n_vocab), sum = 0.0;

    for (size_t i = 0; i < n_vocab; i++) {
        double lp = (double) logits_p[i] - log_p, p = exp(lp);

        if (p > 0.0)
            sum += p * (lp - ((double) logits_q[i] - log_q));
    }

    return sum;
}
