/* Reading UUIDs; see gpu_uuid.h. */
#include "daemon/config/gpu_uuid.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/errmsg.h"

enum { PREFIX_CHARS = 4, DIGITS = 32 };

static bool gpu_uuid_is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Reads [n_bytes] of @text, which may be longer. */
static int gpu_uuid_read_part(const char *text, size_t n_bytes, char ret[static GPU_UUID_BYTES])
{
    char digits[DIGITS];
    size_t n = 0;

    if (n_bytes < PREFIX_CHARS ||
        (strncasecmp(text, "GPU-", PREFIX_CHARS) != 0 && strncasecmp(text, "MIG-", PREFIX_CHARS) != 0))
        return -EINVAL;

    for (size_t i = PREFIX_CHARS; i < n_bytes; i++) {
        if (text[i] == '-')
            continue;
        if (!gpu_uuid_is_hex(text[i]) || n == DIGITS)
            return -EINVAL;

        digits[n++] = text[i] >= 'A' && text[i] <= 'F' ? (char) (text[i] - 'A' + 'a') : text[i];
    }

    if (n != DIGITS)
        return -EINVAL;

    (void) snprintf(ret, GPU_UUID_BYTES, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", digits, digits + 8, digits + 12,
                    digits + 16, digits + 20);
    return 0;
}

int gpu_uuid_read(const char *text, char ret[static GPU_UUID_BYTES])
{
    return gpu_uuid_read_part(text, strlen(text), ret);
}

bool gpu_uuid_equal(const char *a, const char *b)
{
    char one[GPU_UUID_BYTES], other[GPU_UUID_BYTES];

    return gpu_uuid_read(a, one) == 0 && gpu_uuid_read(b, other) == 0 && strcmp(one, other) == 0;
}

int gpu_uuid_list(const char *text, uint32_t n_max, char (*ret)[GPU_UUID_BYTES], uint32_t *ret_n,
                  struct errmsg *e)
{
    uint32_t n = 0;

    if (!text || text[0] == '\0') {
        *ret_n = 0;
        return 0;
    }

    if (strcmp(text, GPU_UUID_FIRST) == 0) {
        ret[0][0] = '\0';
        *ret_n = 1;
        return 0;
    }

    for (;; n++) {
        size_t bytes = strcspn(text, ",");

        if (n == n_max)
            return fail(e, -EINVAL, "more than %" PRIu32 " GPUs", n_max);
        if (gpu_uuid_read_part(text, bytes, ret[n]) < 0)
            return fail(e, -EINVAL,
                        "\"%.*s\" is not the UUID of a GPU (nvidia-smi -L shows them), nor \"" GPU_UUID_FIRST
                        "\" alone",
                        bytes > 60 ? 60 : (int) bytes, text);

        for (uint32_t i = 0; i < n; i++)
            if (gpu_uuid_equal(ret[i], ret[n]))
                return fail(e, -EINVAL, "%s is listed twice", ret[n]);
        if (text[bytes] == '\0')
            break;

        text += bytes + 1;
    }

    *ret_n = n + 1;
    return 0;
}
