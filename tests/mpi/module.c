/* A process that is linked to no MPI, as the `weft` command: loads the module of the one whose
 * mpirun started it, and sends a message around.
 *
 *     module FLAVOUR RANKS        ends well with as many ranks
 *     module FLAVOUR refused TEXT fails with a message that contains TEXT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/join/mpi_module.h"

static int complain(const char *what) {
    fprintf(stderr, "%s (%s)\n", what, weft_error_message());
    return 1;
}

static int around(const weft_transport *t) {
    enum { BYTES = 100000 };
    char *data = calloc(2, BYTES), *all = calloc((size_t)t->size, sizeof(int));
    void *request[2] = {aligned_alloc(16, (t->request_bytes + 15) / 16 * 16),
                        aligned_alloc(16, (t->request_bytes + 15) / 16 * 16)};
    int last = (t->rank + t->size - 1) % t->size, rank;
    if (!data || !all || !request[0] || !request[1]) return complain("no memory");
    if (t->exchange(t->context, &t->rank, sizeof(int), all) < 0) return complain("exchange");
    for (int r = 0; r < t->size; r++) {
        memcpy(&rank, all + (size_t)r * sizeof(int), sizeof rank);
        if (rank != r) return complain("ranks are not in order");
    }
    memset(data, t->rank + 1, BYTES);
    if (t->receive(t->context, last, 1ull << 40, data + BYTES, BYTES, request[0]) < 0 ||
        t->send(t->context, (t->rank + 1) % t->size, 1ull << 40, data, BYTES, request[1]) < 0)
        return complain("a message");
    for (int i = 0; i < 2; i++) {
        weft_status status;
        while ((status = t->test(t->context, request[i], NULL)) == WEFT_PENDING) continue;
        if (status < 0) return complain("a message");
    }
    for (int i = 0; i < BYTES; i++)
        if (data[BYTES + i] != last + 1) return complain("a message is not what was sent");
    if (t->send(t->context, t->size, 0, data, 1, request[0]) != WEFT_E_ARG ||
        !strstr(weft_error_message(), "rank"))
        return complain("an error of the module did not arrive");
    free(data);
    free(all);
    free(request[0]);
    free(request[1]);
    return 0;
}

int main(int argc, char **argv) {
    weft_transport t;
    const char *folder = getenv("WEFT_MODULE_PATH");
    if (argc < 3) return complain("usage: module FLAVOUR RANKS | module FLAVOUR refused TEXT");
    weft_status status = wefti_mpi_module_open(argv[1], folder ? folder : "", 60, &t);
    if (argc > 3) {
        if (status >= 0) return complain("was not refused");
        if (!strstr(weft_error_message(), argv[3])) return complain("another message");
        return 0;
    }
    if (status < 0) return complain("open");
    if (t.size != atoi(argv[2])) return complain("another number of ranks");
    int failed = around(&t);
    t.close(t.context);
    if (!failed && wefti_mpi_module_open(argv[1], folder ? folder : "", 60, &t) != WEFT_E_ARG)
        failed = complain("MPI cannot begin again, but nobody said so");
    if (!failed && t.rank == 0) printf("%d ranks through the module\n", t.size);
    return failed;
}
