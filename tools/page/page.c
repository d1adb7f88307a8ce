/* See page.h. */
#include "tools/page/page.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/page/page_assets.h"

enum { DIGITS = 5 }; /* of a real number */

static void page_put(FILE *f, const char *begin, const struct page_asset *a, const char *end)
{
    fputs(begin, f);
    (void) fwrite(a->text, 1, a->n, f);
    fputs(end, f);
}

/* JSON in a script element, which a "<" in a text could end. */
static void page_put_json(FILE *f, const char *json)
{
    for (const char *p = json; *p;) {
        size_t n = strcspn(p, "<");

        (void) fwrite(p, 1, n, f);
        p += n;
        if (*p == '<') {
            fputs("\\u003c", f);
            p++;
        }
    }
}

int page_write(FILE *f, enum page_kind kind, const json_t *numbers)
{
    _cleanup_(freep) char *json = json_dumps(numbers, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));

    if (!json)
        return -ENOMEM;

    fprintf(f,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
            "'unsafe-inline'; script-src %s\">\n<title>KV-COBRA</title>\n",
            page_script_hashes[kind]);
    page_put(f, "<style>\n", &page_style, "</style></head>\n<body>\n");
    page_put(f, "", &page_templates[kind],
             "<noscript><p class=\"note\">A script of this page shows its numbers; scripts are switched off "
             "here.</p></noscript>\n");
    fputs("<script type=\"application/json\" id=\"numbers\">", f);
    page_put_json(f, json);
    fputs("</script>\n", f);
    if (page_d3.n > 0)
        page_put(f, "<script>", &page_d3, "</script>\n");
    page_put(f, "<script>", &page_common, "</script>\n");
    page_put(f, "<script>", &page_scripts[kind], "</script>\n</body></html>\n");
    return 0;
}
