/* The client in Python; see raw_python_fixture.h. */
#include "tests/e2e/raw_python_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char raw_salt[] = "another adapter";

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

    fprintf(f,
            "{\"geometry\": {\"n_layers\": %u, \"n_heads\": %u, \"n_kv_heads\": %u, \"d\": %u, \"n_rot\": "
            "%u, \"attn_scale\": %.17g, \"freq\": [",
            g->n_layers, g->n_heads, g->n_kv_heads, g->d, g->n_rot, g->attn_scale);
    for (uint32_t i = 0; i < g->n_rot / 2; i++)
        fprintf(f, "%s%.17g", i ? ", " : "", g->freq[i]);
    fprintf(f, "]}, \"salt\": \"%s\", \"model\": \"", raw_salt);
    for (size_t i = 0; i < 32; i++)
        fprintf(f, "%02x", random_table_model_digest[i]);
    fprintf(f, "\", \"tokens\": [");
    for (size_t i = 0; i < RAW_TOKENS; i++)
        fprintf(f, "%s%u", i ? ", " : "", tokens[i]);
    fprintf(f, "]}\n");
    assert(fclose(f) == 0);
}

/* [chunk][side][layer][64][heads][d] */
static void write_vectors(const struct scene *sc, const struct embedded *m)
{
    FILE *f = create(sc, "vectors");

    for (size_t c = 0; c < RAW_CHUNKS; c++)
        for (unsigned side = 0; side < 2; side++)
            for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
                float *x =
                    embedded_input(m, 0, layer, (enum kvc_side) side, c * KVC_CHUNK_TOKENS, KVC_CHUNK_TOKENS);
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

static float *read_decoded(const struct scene *sc, const struct embedded *m)
{
    size_t bytes = (size_t) RAW_TOKENS * 2 * m->g.n_layers * m->n_heads * m->g.d * sizeof(float);
    float *decoded = malloc(bytes);
    char path[160];
    FILE *f;

    (void) snprintf(path, sizeof(path), "%s/decoded", sc->daemon.folder);
    f = fopen(path, "re");
    assert(decoded && f);
    CU_ASSERT_EQUAL_FATAL(fread(decoded, 1, bytes, f), bytes);
    CU_ASSERT_EQUAL(fgetc(f), EOF);
    (void) fclose(f);
    return decoded;
}

bool raw_python(const struct scene *sc, const struct embedded *m, float **ret_decoded)
{
    _cleanup_(freep) uint32_t *tokens = scene_tokens(0, RAW_TOKENS);
    int r;

    write_scene(sc, tokens);
    write_vectors(sc, m);
    r = run_python(sc);
    if (r == 77)
        exit(77);
    if (r != 0)
        return false;
    *ret_decoded = read_decoded(sc, m);
    for (const char *const *name = (const char *const[]){"scene.json", "vectors", "decoded", NULL}; *name;
         name++) {
        char path[160];

        (void) snprintf(path, sizeof(path), "%s/%s", sc->daemon.folder, *name);
        (void) unlink(path);
    }
    return true;
}
