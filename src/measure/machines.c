/* The built-in machines, and machines as text: weft/info.h. */
#include "topo/model.h"
#include "weft/info.h"

const char *weft_machine_name(int index) {
    for (int i = 0; wefti_model_files[i].name; i++)
        if (i == index) return wefti_model_files[i].name;
    return NULL;
}

weft_status weft_machine_text(const char *machine, char **out) {
    WEFT_REQUIRE(machine && out, WEFT_E_ARG, "weft_machine_text needs a machine and a place");
    wefti_machine_model *model;
    wefti_text text = {0};
    WEFT_TRY(wefti_model_find(machine, &model));
    wefti_model_print(model, &text);
    wefti_model_destroy(model);
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a machine file");
    return WEFT_OK;
}
