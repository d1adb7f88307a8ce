/*
 * A client without the library (client/python/raw_client.py) and one with it: the daemon's codes are those of the library,
 * and what one publishes the other finds.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/client_lib.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "client_raw";

enum { CHUNKS = 2, TOKENS = CHUNKS * KVC_CHUNK_TOKENS };

static const char salt[] = "another adapter";
static const char *const pool[] = { "--pool-bytes=64M", "--arena-bytes=8M", NULL };

static FILE *create(const struct scene *sc, const char *name)
{
    char path[160];
    FILE *f;

    (void) snprintf(path, sizeof(path), "%s/%s", sc->daemon.folder, name);
    f = fopen(path, "we");
    assert(f);
    return f;
}

static void write_scene(const struct scene *sc, const uint32_t *tokens)
{
    FILE *f = create(sc, "scene.json");
    const struct geometry *g = &sc->g;

    fprintf(f, "{\"geometry\": {\"n_layers\": %u, \"n_heads\": %u, \"n_kv_heads\": %u, \"d\": %u, \"n_rot\": %u, "
            "\"attn_scale\": %.17g, \"freq\": [", g->n_layers, g->n_heads, g->n_kv_heads, g->d, g->n_rot, g->attn_scale);
    for (uint32_t i = 0; i < g->n_rot / 2; i++)
        fprintf(f, "%s%.17g", i ? ", " : "", g->freq[i]);
    fprintf(f, "]}, \"salt\": \"%s\", \"model\": \"", salt);
    for (size_t i = 0; i < 32; i++)
        fprintf(f, "%02x", random_table_model_digest[i]);
    fprintf(f, "\", \"tokens\": [");
    for (size_t i = 0; i < TOKENS; i++)
        fprintf(f, "%s%u", i ? ", " : "", tokens[i]);
    fprintf(f, "]}\n");
    assert(fclose(f) == 0);
}

/* [chunk][side][layer][64][heads][d] */
static void write_vectors(const struct scene *sc, const struct embedded *m)
{
    FILE *f = create(sc, "vectors");

    for (size_t c = 0; c < CHUNKS; c++)
        for (unsigned side = 0; side < 2; side++)
            for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
                float *x = embedded_input(m, 0, layer, (enum kvc_side) side, c * KVC_CHUNK_TOKENS, KVC_CHUNK_TOKENS);
                size_t n = (size_t) KVC_CHUNK_TOKENS * m->n_heads * m->g.d;

                assert(fwrite(x, sizeof(*x), n, f) == n);
                free(x);
            }
    assert(fclose(f) == 0);
}

static int run_python(const struct scene *sc)
{
    int status = -1;
    pid_t pid = fork();

    assert(pid >= 0);
    if (pid == 0) {
        (void) execl("/usr/bin/python3", "python3", "-B", getenv("KVC_RAW_SCRIPT"), getenv("KVC_RAW_LIBRARY"),
                     getenv("KVC_RAW_PB"), sc->daemon.socket, sc->daemon.folder, (char *) NULL);
        _exit(errno == ENOENT ? 77 : 126);
    }
    assert(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* What the library reads of one layer and side, in the file's order. */
static void compare(const struct embedded *m, kvc_seq *s, const float *decoded)
{
    size_t row = (size_t) m->n_heads * m->g.d, layer_n = KVC_CHUNK_TOKENS * row;
    double error = 0, energy = 0;

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++)
        for (unsigned side = 0; side < 2; side++) {
            float *read = calloc(TOKENS, row * sizeof(*read));
            float *x = embedded_input(m, 0, layer, (enum kvc_side) side, 0, TOKENS);

            assert(read);
            CU_ASSERT_EQUAL_FATAL(kvc_seq_read(s, layer, (enum kvc_side) side, 0, TOKENS, read), 0);
            for (size_t c = 0; c < CHUNKS; c++) {
                const float *theirs = decoded + ((c * 2 + side) * m->g.n_layers + layer) * layer_n;

                CU_ASSERT_EQUAL(memcmp(theirs, read + c * layer_n, layer_n * sizeof(*read)), 0);
            }
            for (size_t i = 0; i < TOKENS * row; i++) {
                error += (double) (read[i] - x[i]) * (read[i] - x[i]);
                energy += (double) x[i] * x[i];
            }
            free(read);
            free(x);
        }
    /* 4 bits with Lloyd-Max levels leave about 1 % of a matching spectrum; these inputs are not the table's, but noise
     * or a shifted layout would leave more than all of it */
    CU_ASSERT(error < 0.3 * energy);
}

static void test_python(void)
{
    struct scene sc;
    struct embedded m;
    uint32_t *tokens = scene_tokens(0, TOKENS + 1);
    size_t bytes, matched = 0;
    float *decoded;
    kvc_seq *s = NULL, *other = NULL;
    char path[160];
    FILE *f;
    int r;

    scene_start(&sc, random_table_geometry(3, 6, 2, 64), 4.0, 1, pool);
    m = scene_client(&sc);
    write_scene(&sc, tokens);
    write_vectors(&sc, &m);
    r = run_python(&sc);
    if (r == 77)
        exit(77);
    CU_ASSERT_EQUAL_FATAL(r, 0);

    /* same tokens, same salt: found; without the salt: not */
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, salt, strlen(salt), &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, TOKENS + 1, &matched), 0);
    CU_ASSERT_EQUAL_FATAL(matched, TOKENS);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &other), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(other, tokens, TOKENS + 1, &matched), 0);
    CU_ASSERT_EQUAL(matched, 0);

    bytes = (size_t) TOKENS * 2 * m.g.n_layers * m.n_heads * m.g.d * sizeof(float);
    decoded = malloc(bytes);
    (void) snprintf(path, sizeof(path), "%s/decoded", sc.daemon.folder);
    f = fopen(path, "re");
    assert(decoded && f);
    CU_ASSERT_EQUAL_FATAL(fread(decoded, 1, bytes, f), bytes);
    CU_ASSERT_EQUAL(fgetc(f), EOF);
    (void) fclose(f);
    compare(&m, s, decoded);
    for (const char *const *name = (const char *const[]) { "scene.json", "vectors", "decoded", NULL }; *name; name++) {
        (void) snprintf(path, sizeof(path), "%s/%s", sc.daemon.folder, *name);
        (void) unlink(path);
    }
    free(decoded);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = { TEST(test_python), TEST_END };
