/* See utf8_json.h. */
#include "tools/command/utf8_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/utf8.h"

json_t *utf8_json(const char *text, size_t bytes)
{
    static const char replacement[3] = "\xef\xbf\xbd"; /* U+FFFD */
    _cleanup_(freep) char *clean = NULL;
    size_t room, n = 0;

    if (utf8_error(text, bytes) == bytes)
        return json_stringn(text, bytes);

    if (!checked_mul(bytes, sizeof(replacement), &room))
        return NULL;

    clean = malloc(room + 1);
    if (!clean)
        return NULL;

    while (bytes > 0) {
        size_t valid = utf8_length(text, bytes), step = valid > 0 ? valid : 1;

        if (valid > 0) {
            memcpy(clean + n, text, valid);
            n += valid;
        } else {
            memcpy(clean + n, replacement, sizeof(replacement));
            n += sizeof(replacement);
        }

        text += step;
        bytes -= step;
    }

    return json_stringn(clean, n);
}
