/* Settings that users give for all jobs alike: WEFT_COMM, WEFT_INTERFACE and others. */
#include "launch/env/reader.h"

#include <string.h>

static weft_status path_of(wefti_variables v, const char *name, char out[WEFTI_PATH_TEXT]) {
    const char *path = wefti_variable(v, name);
    size_t bytes = path ? strlen(path) : 0;
    WEFT_REQUIRE(bytes < WEFTI_PATH_TEXT, WEFT_E_ARG, "%s has %zu bytes; it may have %d", name,
                 bytes, WEFTI_PATH_TEXT - 1);
    if (path) memcpy(out, path, bytes + 1);
    return WEFT_OK;
}

weft_status wefti_settings_read(wefti_variables v, wefti_settings *out) {
    int tls = 0;
    *out = (wefti_settings){0};
    WEFT_TRY(wefti_variable_number(v, "WEFT_TLS", 0, 1, &tls));
    out->tls = tls == 1;
    WEFT_TRY(wefti_variable_word(v, "WEFT_COMM", out->communicator, sizeof out->communicator));
    WEFT_TRY(wefti_variable_word(v, "WEFT_INTERFACE", out->interface, sizeof out->interface));
    WEFT_TRY(wefti_variable_word(v, "WEFT_HOST_ID", out->host_id, sizeof out->host_id));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_JOIN_SECONDS", &out->join_seconds));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_HEARTBEAT_SECONDS", &out->heartbeat_seconds));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_WAIT_SECONDS", &out->wait_seconds));
    WEFT_TRY(path_of(v, "WEFT_SECRET_FILE", out->secret_file));
    WEFT_TRY(path_of(v, "WEFT_LINKS", out->links));
    return WEFT_OK;
}
