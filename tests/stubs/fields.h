/* What the stub libraries share: a machine told in environment variables, field by field. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *given(const char *name, const char *otherwise) {
  const char *text = getenv(name);
  return text ? text : otherwise;
}

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

/* Copy the index-th part of a text that sep divides; 0 when there is none. */
static int part(const char *text, char sep, int index, char *out, size_t size) {
  for (; *text && index > 0; index--) {
    const char *next = strchr(text, sep);
    if (!next) return 0;
    text = next + 1;
  }
  const char *end = strchr(text, sep);
  size_t length = end ? (size_t)(end - text) : strlen(text);
  if (!*text && index >= 0 && length == 0) return 0;
  if (length >= size) length = size - 1;
  memcpy(out, text, length);
  out[length] = 0;
  return 1;
}

static int count(const char *text, char sep) {
  int parts = *text ? 1 : 0;
  for (; *text; text++) parts += *text == sep;
  return parts;
}
