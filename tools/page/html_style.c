/*
 * The style sheet of pages: light or dark as the reader's system prefers, black on white in print. No
 * information is in colours alone: keys and values also differ by mark and dash, and the cells of a ramp have
 * numbers. Blue, orange and the ramp were chosen so that people who cannot tell red from green, and grey
 * prints, distinguish them.
 */
#include "tools/page/html.h"

static const char *const rules[] = {
    ":root{color-scheme:light "
    "dark;--bg:#fff;--fg:#1c2127;--muted:#5a6470;--line:#d8dde3;--fine:#eceff2;--card:#f5f7f9;--k:#1b5e9e;--"
    "v:#c4560a;--before:#79828c;--accent:#1b5e9e;--q0:#f7fbf0;--q1:#e2f2d8;--q2:#c5e6cb;--q3:#93d0c4;--q4:#"
    "57b4c3;--q5:#2f8fbb;--q6:#2369a5;--q7:#1f4788;--q8:#142a5c;--ql:#1c2127;--qd:#fff;--s0:#1c2127;--s1:#"
    "1b5e9e;--s2:#c4560a;--s3:#8a4fa3;--s4:#79828c;--b0:#1b5e9e;--b1:#9ec5e6;--b2:#1c2127;--b3:#e9a15b;--b4:#"
    "f6dcc0}\n",
    "@media screen and "
    "(prefers-color-scheme:dark){:root{--bg:#13171c;--fg:#e4e8ec;--muted:#9aa5b1;--line:#333b45;--fine:#"
    "222931;--card:#1b2128;--k:#6cb2f0;--v:#f0955a;--before:#8b95a0;--accent:#7fbcf5;--q0:#161c2b;--q1:#"
    "1b2c50;--q2:#1f4276;--q3:#235f98;--q4:#2c82b0;--q5:#4aa5bd;--q6:#7cc6c2;--q7:#b6e0c6;--q8:#ecf7d6;--ql:#"
    "e4e8ec;--qd:#13171c;--s0:#fff;--s1:#6cb2f0;--s2:#f0955a;--s3:#c79be0;--s4:#8b95a0;--b0:#4a90d0;--b1:#"
    "274a6b;--b2:#e4e8ec;--b3:#e9a15b;--b4:#6b4a2a}}\n",
    "*{box-sizing:border-box}\n",
    "html{-webkit-text-size-adjust:100%}\n",
    "body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.55 system-ui,-apple-system,'Segoe "
    "UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif}\n",
    "main,header,footer{max-width:1080px;margin:0 auto;padding:0 20px}\n",
    "header{padding-top:36px}\n",
    "h1{font-size:1.75rem;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em;overflow-wrap:anywhere}\n",
    "h2{font-size:1.3rem;margin:52px 0 6px;padding-top:14px;border-top:1px solid var(--line)}\n",
    "main>section:first-child h2{margin-top:26px}\n",
    "h3{font-size:1.05rem;margin:30px 0 4px}\n",
    "h4{font-size:.9rem;font-weight:600;margin:10px 0 4px;color:var(--muted)}\n",
    "p{margin:6px 0 12px;max-width:46em}\n",
    "a{color:var(--accent)}\n",
    "code{font:.88em/1.4 ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;overflow-wrap:anywhere}\n",
    ".lead{color:var(--muted);margin-bottom:20px}\n",
    "nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:20px 0 "
    "0;font-size:.92rem}\n",
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(155px,1fr));gap:12px;margin:18px "
    "0;padding:0}\n",
    ".tiles div{background:var(--card);border-radius:8px;padding:12px 14px}\n",
    ".tiles dt{font-size:.8rem;color:var(--muted);line-height:1.3}\n",
    ".tiles dd{margin:3px 0 "
    "0;font-size:1.3rem;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.25}\n",
    ".tiles dd small{display:block;font-size:.78rem;font-weight:400;color:var(--muted)}\n",
    "table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}\n",
    "caption{text-align:left;color:var(--muted);padding:4px 0 6px}\n",
    "th,td{padding:3px 12px 3px 0;text-align:right;border-bottom:1px solid var(--fine);vertical-align:top}\n",
    "th{font-weight:600;border-color:var(--line);vertical-align:bottom}\n",
    "td.text,th.text,table.facts td{text-align:left}td.text{overflow-wrap:anywhere}\n",
    "dl.facts{margin:10px 0;font-size:.9rem;font-variant-numeric:tabular-nums}\n",
    "dl.columns{columns:2 340px;column-gap:36px}\n",
    "dl.facts div{display:flex;gap:12px;padding:3px 0;border-bottom:1px solid "
    "var(--fine);break-inside:avoid}\n",
    "dl.facts .group{font-weight:600;padding-top:10px;break-after:avoid}dl.facts .group "
    "dt{color:var(--fg)}dl.columns .group:first-child{padding-top:3px}\n",
    "dl.facts dt{flex:0 0 11.5em;color:var(--muted)}dl.facts "
    "dd{margin:0;min-width:0;overflow-wrap:anywhere}\n",
    "figure{margin:14px 0 8px}\n",
    "details{margin:4px 0 12px;font-size:.92rem}\n",
    "summary{cursor:pointer;color:var(--accent)}\n",
    "details .scroll{max-height:420px;overflow:auto;border:1px solid var(--line);border-radius:6px;padding:0 "
    "12px;margin-top:6px}\n",
    "details thead th{position:sticky;top:0;background:var(--bg)}\n",
    /* shadows at the edges where a table goes on */
    ".scroll{overflow-x:auto;background:linear-gradient(to right,var(--bg) 40%,transparent) left/36px 100% "
    "no-repeat local,linear-gradient(to left,var(--bg) 40%,transparent) right/36px 100% no-repeat "
    "local,linear-gradient(to right,var(--line),transparent) left/12px 100% no-repeat "
    "scroll,linear-gradient(to "
    "left,var(--line),transparent) right/12px 100% no-repeat scroll}\n",
    ".note{background:var(--card);border-left:3px solid var(--line);padding:8px "
    "12px;color:var(--muted);font-size:.92rem}\n",
    ".panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:8px 24px}\n",
    ".multiples{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:6px 8px}\n",
    ".legend{font-size:.82rem;color:var(--muted);max-width:none;margin:4px 0 8px}\n",
    ".legend .item{display:inline-block;margin-right:14px}\n",
    ".legend svg{vertical-align:-2px}\n",
    "footer{margin-top:56px;padding-bottom:36px;color:var(--muted);font-size:.85rem}\n",
    /* charts */
    "svg{display:block;font-family:inherit;font-variant-numeric:tabular-nums}\n",
    ".legend svg,svg.key,svg.ramp{display:inline-block;max-width:100%}\n",
    "svg.plot,svg.heat{width:100%;height:auto}\n",
    ".wide>svg.plot{max-width:720px}\n",
    ".maps{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,310px),1fr));gap:6px 14px}\n",
    ".tick,.axis,.panel,.name,.value{fill:var(--muted);font-size:11px}\n",
    ".multiples .tick{font-size:10px}\n",
    ".axis{font-size:12px}\n",
    ".panel,.name,.value{fill:var(--fg);font-size:12px}\n",
    ".frame{fill:none;stroke:var(--line)}\n",
    ".grid{stroke:var(--line);stroke-width:.7}\n",
    ".fine{stroke:var(--fine);stroke-width:.7}\n",
    ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}\n",
    ".band{stroke:none;fill-opacity:.22}\n",
    ".mark{stroke-width:1.3}\n",
    ".link{stroke:var(--before);stroke-width:.8;opacity:.6}\n",
    ".line.k,.mark.k,.stroke.k{stroke:var(--k)}.band.k,.mark.k{fill:var(--k)}\n",
    ".line.v,.mark.v,.stroke.v{stroke:var(--v)}.band.v,.mark.v{fill:var(--v)}\n",
    ".line.v{stroke-dasharray:6 3}\n",
    ".line.before{stroke:var(--before);stroke-dasharray:2 3}\n",
    ".line.diagonal{stroke:var(--muted);stroke-width:1}\n",
    ".line.s0,.mark.s0{stroke:var(--s0)}.mark.s0{fill:var(--s0)}.line.s0{stroke-width:2.6}\n",
    ".line.s1,.mark.s1{stroke:var(--s1)}.mark.s1{fill:var(--s1)}.line.s1{stroke-dasharray:7 3}\n",
    ".line.s2,.mark.s2{stroke:var(--s2)}.mark.s2{fill:var(--s2)}.line.s2{stroke-dasharray:2 3}\n",
    ".line.s3,.mark.s3{stroke:var(--s3)}.mark.s3{fill:var(--s3)}.line.s3{stroke-dasharray:9 3 2 3}\n",
    ".line.s4,.mark.s4{stroke:var(--s4)}.mark.s4{fill:none;stroke-width:2}\n",
    ".mark.own{stroke:var(--s0);fill:none;stroke-width:2}\n",
    ".mark.open{fill:var(--bg)}\n",
    ".stroke{fill:none;stroke-width:1.2}.stroke.threshold{stroke:var(--before);stroke-width:1}\n",
    ".b0{fill:var(--b0)}.b1{fill:var(--b1)}.b2{fill:var(--b2)}.b3{fill:var(--b3)}.b4{fill:var(--b4)}\n",
    ".cell rect{stroke:var(--bg);stroke-width:1}\n",
    ".cell text{font-size:11px;text-anchor:middle}.cell text.small{font-size:9px}\n",
    ".q0 rect{fill:var(--q0)}.q1 rect{fill:var(--q1)}.q2 rect{fill:var(--q2)}.q3 rect{fill:var(--q3)}.q4 "
    "rect{fill:var(--q4)}.q5 rect{fill:var(--q5)}.q6 rect{fill:var(--q6)}.q7 rect{fill:var(--q7)}.q8 "
    "rect{fill:var(--q8)}.none rect{fill:var(--fine)}\n",
    ".q0 text,.q1 text,.q2 text,.q3 text,.q4 text,.none text{fill:var(--ql)}.q5 text,.q6 text,.q7 text,.q8 "
    "text{fill:var(--qd)}\n",
    /* narrow pages: nothing is wider than the page but tables of many rows, which scroll in their frame */
    "@media (max-width:640px){body{font-size:15px}h1{font-size:1.4rem}main,header,footer{padding-left:14px;"
    "padding-right:14px}.multiples{grid-template-columns:repeat(auto-fill,minmax(128px,1fr))}.panels "
    ".tick,.panels .axis,.wide .tick,.wide .axis,.wide .name,.wide .value{font-size:14px}dl.facts "
    "dt{flex-basis:9.5em}.tiles{grid-template-columns:1fr 1fr}.short table,.short tbody,.short "
    "caption{display:block}.short thead{display:none}.short tr{display:block;padding:6px 0;border-bottom:1px "
    "solid var(--line)}.short td{display:flex;justify-content:space-between;gap:14px;padding:1px "
    "0;border:0;overflow-wrap:anywhere}.short td::before{content:attr(data-label);color:var(--muted);"
    "text-align:left;flex:0 0 auto;max-width:60%}}\n",
    "@media "
    "print{:root{color-scheme:light}@page{margin:14mm}body{font-size:10.5pt}nav,details{display:none}main,"
    "header,footer{max-width:none;padding:0}h2{margin-top:24px}h2,h3,h4{break-after:avoid}.part,figure,."
    "tiles "
    "div,.panels>div,.multiples svg,.maps "
    "svg,tr{break-inside:avoid}p{break-inside:avoid}p:has(+.part),p:has(+figure),p:has(+p),p:has(+table){"
    "break-after:avoid}.scroll{overflow:"
    "visible;background:none}.panels,.maps{grid-template-columns:1fr "
    "1fr}.multiples{grid-template-columns:repeat("
    "6,1fr)}.tiles{grid-template-columns:repeat(3,1fr)}dl.columns{columns:2}.panels .tick,.panels "
    ".axis{font-size:14px}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}a{color:inherit;text-"
    "decoration:none}footer{break-before:avoid;margin-top:20px}}\n",
};

void html_style(FILE *f)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++)
        fputs(rules[i], f);
}

/* ---- the frame of a page ---- */

void html_begin(FILE *f)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" "
          "content=\"width=device-width, initial-scale=1\"/>"
          /* nothing can be loaded, also if a name in a file contains markup */
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'\"/>"
          "<title>",
          f);
}

void html_begin_body(FILE *f)
{
    fputs("</title>\n<style>", f);
    html_style(f);
    fputs("</style></head>\n<body>\n", f);
}
