/*
 * Pages of numbers: one HTML file that loads nothing. It holds a template, the style page.css, the numbers as
 * JSON, and the scripts that draw them: D3 (where it was installed when the program was built), page.js and
 * the script of the page. assets.py packs these files into the program.
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

enum page_kind { PAGE_INSPECT, PAGE_CAPACITY, PAGE_KINDS };

/**
 * page_write() - write a page
 * @numbers: the document that the script of the page reads. Reals keep five digits
 *
 * The browser runs the scripts of this program alone: the page names their SHA-256, and no text of @numbers
 * can end the element that holds it.
 *
 * Errors of the stream are not reported: the caller checks ferror() once, at the end.
 * Return: 0; -ENOMEM.
 */
int page_write(FILE *f, enum page_kind kind, const json_t *numbers);
