/* See top_history.h. */
#include "tools/operate/top_history.h"

#include "tools/command/human.h"
#include "tools/operate/top_amounts.h"

enum { ROWS = 4, LABEL_COLUMNS = 8, WIDTH_MIN = LABEL_COLUMNS + 4 };

/* ---- samples ---- */

static void top_history_sum(const Kvcobra__StatusReply *s, uint64_t *hits, uint64_t *misses)
{
    *hits = *misses = 0;
    for (size_t i = 0; i < s->n_tenants; i++) {
        *hits += s->tenants[i]->hits;
        *misses += s->tenants[i]->misses;
    }
}

void top_history_add(struct top_history *h, const struct top_moment *now, const struct top_moment *before)
{
    struct top_sample *x = &h->ring[h->next];
    uint64_t hits, misses, hits_before, misses_before;

    if (!before || now->seconds <= before->seconds)
        return;

    top_history_sum(now->status, &hits, &misses);
    top_history_sum(before->status, &hits_before, &misses_before);
    hits = top_amounts_growth(hits, hits_before);
    misses = top_amounts_growth(misses, misses_before);
    *x = (struct top_sample){.seconds = now->seconds - before->seconds, .hit_share = -1};
    if (hits + misses > 0)
        x->hit_share = (double) hits / (double) (hits + misses);
    if (now->status->pool_bytes > 0)
        x->pool_share = (double) now->status->page_bytes / (double) now->status->pool_bytes;
    x->evictions =
        (double) top_amounts_growth(now->status->evictions, before->status->evictions) / x->seconds;
    h->next = (h->next + 1) % TOP_HISTORY_MAX;
    h->n += h->n < TOP_HISTORY_MAX;
}

/* ---- charts ---- */

enum top_value { TOP_HIT_SHARE, TOP_POOL_SHARE, TOP_EVICTIONS };

/* The sample that is @age intervals old, 0 the newest. */
static const struct top_sample *top_history_at(const struct top_history *h, size_t age)
{
    return &h->ring[(h->next + TOP_HISTORY_MAX - 1 - age) % TOP_HISTORY_MAX];
}

static double top_history_value(const struct top_sample *x, enum top_value what)
{
    switch (what) {
    case TOP_HIT_SHARE:
        return x->hit_share;
    case TOP_POOL_SHARE:
        return x->pool_share;
    case TOP_EVICTIONS:
        break;
    }
    return x->evictions;
}

/* One row from above, 0 the highest: '#' where the value reaches it, '.' in the lowest row for small ones. */
static void top_history_print_row(const struct top_history *h, enum top_value what, double top, unsigned row,
                                  size_t columns, FILE *f)
{
    size_t n = h->n < columns ? h->n : columns;

    fprintf(f, "%*s", (int) (columns - n), "");
    for (size_t age = n; age-- > 0;) {
        double value = top_history_value(top_history_at(h, age), what);
        double cells = top > 0 ? value / top * ROWS : 0;

        if (value < 0)
            fputc(' ', f);
        else if (cells >= ROWS - row - 0.5)
            fputc('#', f);
        else
            fputc(row == ROWS - 1 ? '.' : ' ', f);
    }
    fputc('\n', f);
}

static void top_history_print_chart(const struct top_history *h, enum top_value what, const char *title,
                                    size_t columns, FILE *f)
{
    size_t n = h->n < columns ? h->n : columns;
    char label[16] = "100 %";
    double top = 1;

    if (what == TOP_EVICTIONS) {
        top = 0;
        for (size_t age = 0; age < n; age++) {
            double value = top_history_value(top_history_at(h, age), what);

            top = value > top ? value : top;
        }
        (void) top_amounts_rate((uint64_t) (top * 1000), 1000, label);
    }

    fprintf(f, "%.*s\n", (int) (columns + LABEL_COLUMNS), title);
    for (unsigned row = 0; row < ROWS; row++) {
        const char *text = "";

        if (row == 0)
            text = label;
        else if (row == ROWS - 1)
            text = "0";
        fprintf(f, "%*.*s ", LABEL_COLUMNS - 1, LABEL_COLUMNS - 1, text);
        top_history_print_row(h, what, top, row, columns, f);
    }
}

void top_history_print(const struct top_history *h, unsigned width, FILE *f)
{
    size_t columns = width > WIDTH_MIN ? width - LABEL_COLUMNS : WIDTH_MIN - LABEL_COLUMNS;
    char span[HUMAN_BYTES], line[96];
    double seconds = 0;

    for (size_t age = 0; age < h->n && age < columns; age++)
        seconds += top_history_at(h, age)->seconds;
    (void) snprintf(line, sizeof(line), "the last %s, all tenants", human_seconds(seconds, span));
    fprintf(f, "%.*s\n", (int) width, line);
    top_history_print_chart(h, TOP_HIT_SHARE, "looked-up chunks that were found", columns, f);
    top_history_print_chart(h, TOP_POOL_SHARE, "host memory of the pool in pages", columns, f);
    top_history_print_chart(h, TOP_EVICTIONS, "pages evicted per second", columns, f);
}
