/* Open MPI. Source: mpirun(1). */
#include "launch/env/reader.h"

#include <string.h>

/* "342097920.0;tcp4://127.0.0.1:51677" */
static void read_server(wefti_env_reader *r) {
    static const char scheme[] = "tcp4://";
    const char *uri = wefti_reader_get(r, "PMIX_SERVER_URI2");
    const char *address = uri ? strstr(uri, scheme) : NULL;
    if (!address || strlen(address += sizeof scheme - 1) >= sizeof r->out->pmix_server) return;
    memcpy(r->out->pmix_server, address, strlen(address) + 1);
}

static weft_status read(wefti_env_reader *r) {
    read_server(r);
    return wefti_read_numbered(r, WEFTI_START_OPEN_MPI);
}

const wefti_launcher_source wefti_source_open_mpi = {
    .names = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
    .read = read};
