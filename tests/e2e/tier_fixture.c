/* See tier_fixture.h. */
#include "tests/e2e/tier_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

/* ---- the daemon ---- */

void tier_write_keys(const struct tier *t, char index, char seal, unsigned seal_id)
{
    FILE *f;

    (void) unlink(t->keys);
    f = fopen(t->keys, "wx");
    assert(f && fchmod(fileno(f), 0600) == 0);
    fprintf(f, "index ");
    for (int i = 0; i < 64; i++)
        fputc(index, f);
    fprintf(f, "\nseal %u ", seal_id);
    for (int i = 0; i < 64; i++)
        fputc(seal, f);
    fprintf(f, "\n");
    assert(fclose(f) == 0);
}

void tier_prepare(struct tier *t)
{
    *t = (struct tier){.folder = "/tmp/kvcobra-tier-XXXXXX"};
    assert(mkdtemp(t->folder));
    (void) snprintf(t->keys, sizeof(t->keys), "%s/keys", t->folder);
    (void) snprintf(t->disk_arg, sizeof(t->disk_arg), "--disk-dir=%s/disk", t->folder);
    (void) snprintf(t->key_arg, sizeof(t->key_arg), "--key-file=%s", t->keys);
    assert(mkdir(t->disk_arg + strlen("--disk-dir="), 0700) == 0);
    tier_write_keys(t, 'a', '1', 1);
    memcpy(t->args,
           (const char *[]){"--pool-bytes=2M", "--extent-bytes=512K", "--span-bytes=128K", "--arena-bytes=2M",
                            "--quota-bytes=64M", "--disk-bytes=64M", t->disk_arg, t->key_arg, NULL},
           9 * sizeof(char *));
}

void tier_start(struct tier *t)
{
    struct daemon d;

    assert(daemon_start(&d, DAEMON_BY_PATH | DAEMON_WITH_STATE, t->args));
    scene_attach(&t->scene, &d, random_table_geometry(2, 4, 2, 64), 3, 1);
}

void tier_begin(struct tier *t)
{
    tier_prepare(t);
    tier_start(t);
}

void tier_remove_files(struct tier *t)
{
    static const char *const files[] = {"disk/records", "disk/pages", "disk", "keys", ""};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[128];

        (void) snprintf(path, sizeof(path), "%s/%s", t->folder, files[i]);
        if (t->is_mounted && strcmp(files[i], "disk") == 0)
            CU_ASSERT_EQUAL(umount(path), 0);
        CU_ASSERT(remove(path) == 0 || (t->is_mounted && errno == ENOENT));
    }
}

void tier_finish(struct tier *t)
{
    scene_end(&t->scene);
    tier_remove_files(t);
}

void tier_start_again(struct tier *t)
{
    CU_ASSERT_FATAL(daemon_start_again(&t->scene.daemon, t->args));
    scene_reconnect(t->scene.control, t->scene.daemon.operator_socket);
}

void tier_restart(struct tier *t)
{
    CU_ASSERT(daemon_end(&t->scene.daemon));
    tier_start_again(t);
}

const Kvcobra__ControlTierReply *tier_ask(struct tier *t, Kvcobra__TierAction action)
{
    return scene_tier(t->scene.control, action);
}

bool tier_reaches(struct tier *t, const char *state)
{
    const Kvcobra__ControlTierReply *s = tier_ask(t, KVCOBRA__TIER_ACTION__TIER_ASK);

    for (struct wait w = wait_begin(); strcmp(s->state, state) != 0 && wait_again(&w);)
        s = tier_ask(t, KVCOBRA__TIER_ACTION__TIER_ASK);
    return strcmp(s->state, state) == 0;
}

const Kvcobra__ControlTierReply *tier_write_all(struct tier *t)
{
    const Kvcobra__ControlTierReply *s = tier_ask(t, KVCOBRA__TIER_ACTION__TIER_WRITE_ALL);

    for (struct wait w = wait_begin(); !s->all_written && wait_again(&w);)
        s = tier_ask(t, KVCOBRA__TIER_ACTION__TIER_ASK);
    CU_ASSERT(s->all_written);
    return s;
}

/* ---- texts ---- */

void tier_publish(const struct embedded *m, uint32_t text)
{
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(m, s, text, 0, TIER_TOKENS, TIER_TOKENS, &n), 0);
    CU_ASSERT_EQUAL(n, TIER_SHARED);
    kvc_seq_free(s);
}

void tier_publish_all(struct tier *t)
{
    struct embedded m = scene_client(&t->scene);

    for (uint32_t text = 0; text < TIER_TEXTS; text++) {
        tier_publish(&m, text);
        (void) tier_write_all(t);
    }
    embedded_free(&m);
}

bool tier_has_same_bits(const struct embedded *m, kvc_seq *s, const struct embedded *alone, kvc_seq *want,
                        size_t n)
{
    size_t bytes = n * m->g.n_kv_heads * m->g.d * sizeof(float);
    bool same = true;

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        for (int side = 0; side < 2; side++) {
            float *a = embedded_read(m, s, layer, (enum kvc_side) side, n);
            float *b = embedded_read(alone, want, layer, (enum kvc_side) side, n);

            same = same && memcmp(a, b, bytes) == 0;
            free(a);
            free(b);
        }
    }
    return same;
}

size_t tier_match_with(const struct scene *sc, const struct embedded *m, uint32_t text,
                       const kvc_seq_options *o)
{
    struct embedded alone = scene_private(sc);
    uint32_t *tokens = scene_tokens(text, TIER_TOKENS);
    kvc_seq *s = NULL, *want = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, o, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone.model, NULL, 0, &want), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&alone, want, text, 0, TIER_TOKENS), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(want, tokens, TIER_TOKENS, NULL), 0); /* packs the chunks */
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, TIER_TOKENS, &n), 0);
    CU_ASSERT(n == 0 || tier_has_same_bits(m, s, &alone, want, n));
    kvc_seq_free(s);
    kvc_seq_free(want);
    free(tokens);
    embedded_free(&alone);
    return n;
}

size_t tier_match(const struct scene *sc, const struct embedded *m, uint32_t text, uint32_t fetch_ms)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .fetch_ms = fetch_ms};

    return tier_match_with(sc, m, text, &o);
}
