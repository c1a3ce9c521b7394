/* Fuzzes launchers' environments: lines NAME=value. An accepted environment must be consistent. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launch/env/env.h"
#include "launch/env/values.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds) {
    if (!holds) abort();
}

enum { LINES = 256 };

/* Splits a text into the lines of an environment. Variables of rank tables are skipped: rank tables
 * have a fuzzer of their own, and the fuzzer must not read files of this machine. */
static void split(char *text, const char *out[LINES + 1]) {
    int count = 0;
    for (char *line = strtok(text, "\n"); line && count < LINES; line = strtok(NULL, "\n"))
        if (strncmp(line, "RANK_TABLE", 10) != 0 && !strstr(line, "HCCL")) out[count++] = line;
    out[count] = NULL;
}

static void check_launcher(const wefti_launcher *l) {
    const weft_launcher *p = &l->place;
    check(p->size >= 1 && p->size <= WEFTI_RANKS_MAX && p->rank >= -1 && p->rank < p->size);
    check(p->local_rank >= -1 && (p->local_size < 0 || p->local_rank < p->local_size));
    check(p->local_size <= p->size && (p->hosts < 0 || p->host < p->hosts));
    check(l->scheduler_port >= 0 && l->scheduler_port <= 65535);
    check((l->start == WEFTI_START_ALONE) == (p->name == NULL));
    check(!l->serves || (p->rank == 0 && *l->scheduler_host));
    const wefti_settings *set = &l->set;
    check(set->join_seconds >= 0 && set->heartbeat_seconds >= 0 && set->wait_seconds >= 0);
}

static void parse_values(const char *text) {
    char host[WEFTI_HOST_TEXT];
    int port;
    if (wefti_address_parse("address", text, host, &port) >= 0) check(*host && port > 0);
    if (wefti_slurm_first_host(text, host)) check(*host);
    check(wefti_slurm_tasks_of(text, 3) >= -1);
    (void)wefti_slurm_one_task_each(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wefti_launcher found;
    const char *variables[LINES + 1];
    char *lines = malloc(size + 1);
    if (!lines) return 0;
    memcpy(lines, data, size);
    lines[size] = '\0';
    parse_values(lines);
    split(lines, variables);
    if (wefti_launcher_read(variables, "w-1", &found) >= 0) check_launcher(&found);
    free(lines);
    return 0;
}
