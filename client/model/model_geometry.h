/* Geometries in the form of kvcobra.h: reading the caller's, and telling the caller what a table is for. */
#pragma once

#include "alloc/table/geometry.h"
#include "client/kvcobra.h"

struct errmsg;

/* Return: 0; -EINVAL with a sentence: a number is out of range. *ret is valid on success only. */
int model_geometry_read(const kvc_geometry *from, struct geometry *ret, struct errmsg *e);
