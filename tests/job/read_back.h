/* Jobs of texts, for tests that also run in a build without YAML. */
#ifndef JOB_READ_BACK_H
#define JOB_READ_BACK_H

#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "weft/job.h"

/* Overrides, one a line. */
static inline weft_status load_lines(const wefti_text *lines, weft_job **out) {
    const char *words[512];
    int count = 0;
    char *text = strdup(lines->data), *rest = NULL;
    assert_non_null(text);
    for (char *word = strtok_r(text, "\n", &rest); word; word = strtok_r(NULL, "\n", &rest)) {
        assert_true(count < 512);
        words[count++] = word;
    }
    const weft_status status = weft_job_load(NULL, words, count, out);
    free(text);
    return status;
}

/* A job that an import made. Without YAML its lines are read as overrides. */
static inline weft_status read_back(const char *yaml, weft_job **out) {
#ifdef WEFT_HAVE_YAML
    return weft_job_parse("job", yaml, (int64_t)strlen(yaml), NULL, 0, out);
#else
    wefti_text words = {0};
    char section[8][64], *text = strdup(yaml);
    assert_non_null(text);
    for (char *item = text; (item = strstr(item, "\n        {"));) *item = ' '; /* of a list */
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        const size_t blank = strspn(line, " "), depth = blank / 2;
        const char *name = line + blank, *colon = strchr(name, ':');
        if (*name == '#') continue;
        assert_true(depth < 8 && colon < end);
        (void)snprintf(section[depth], sizeof *section, "%.*s", (int)(colon - name), name);
        if (colon + 1 == end) continue;
        for (size_t k = 0; k <= depth; k++)
            wefti_text_add(&words, "%s%s", section[k], k < depth ? "." : "=");
        wefti_text_add(&words, "%.*s\n", (int)(end - colon - 2), colon + 2);
    }
    const weft_status status = load_lines(&words, out);
    wefti_text_free(&words);
    free(text);
    return status;
#endif
}

#endif
