"""The repeat set as trainers read it: loaded by datasets, trained on by TRL, described to the others."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from coverage_job.corpus.shapes import dialogue_of
from coverage_job.remedies import repeat, repeat_files
from tests.remedies.helpers import ChatML, build, counter, fabricate, tiny_tokenizer

datasets = pytest.importorskip("datasets", reason="datasets is not installed (extra `bench`)")

# What `helpers.ChatML` writes, in the template language, with the marks TRL takes its mask from.
TEMPLATE = """\
{%- for m in messages %}{{- '<|start|>' + m.role + '\\n' }}\
{%- if m.role == 'assistant' %}{% generation %}{{- m.content.strip() + '<|end|>' }}{% endgeneration %}\
{%- else %}{{- m.content.strip() + '<|end|>' }}{%- endif %}{{- '\\n' }}{%- endfor %}"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    folder = tmp_path_factory.mktemp("repeat")
    result = build(
        coverage,
        repeat.needs(coverage, "flagged", 20),
        tokenizer,
        ChatML(),
        tokens_per_dialogue=64,
        max_length=512,
    )
    start = tokenizer.token_to_id("<|start|>")
    rows = repeat_files.id_rows({start: 2}, tokenizer, counter(tokenizer, ChatML()))
    repeat_files.write(str(folder), result.dialogues, rows)
    return folder, tokenizer, result


@pytest.mark.parametrize(("builder", "file"), [("json", "repeat.jsonl"), ("parquet", "repeat.parquet")])
def test_datasets_loads_both_files(written, builder, file, tmp_path):
    folder, _, result = written
    loaded = datasets.load_dataset(
        builder, data_files=str(folder / file), split="train", cache_dir=str(tmp_path)
    )
    assert loaded.column_names == ["messages"]
    keys = ("role", "content")
    assert [[{k: m[k] for k in keys} for m in row["messages"]] for row in loaded] == result.dialogues


def test_trl_trains_on_it_and_masks_what_was_counted(written, tmp_path, monkeypatch):
    pytest.importorskip("trl", reason="trl is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    folder, tokenizer, result = written
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>", chat_template=TEMPLATE
    )
    rows = len(fast)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=rows, **sizes))
    loaded = datasets.load_dataset(
        "json", data_files=str(folder / "repeat.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    arguments = SFTConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=2,
        max_length=512,
        assistant_only_loss=True,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(model=model, args=arguments, train_dataset=loaded, processing_class=fast)
    counted = np.zeros(rows, np.int64)
    for row in trainer.train_dataset:
        if "labels" in row:
            ids = np.asarray(row["labels"])
            ids = ids[ids != -100]
        else:
            ids = np.asarray(row["input_ids"])[np.asarray(row["assistant_masks"]) == 1]
        np.add.at(counted, ids, 1)
    assert counted.tolist() == result.counts.occurrences[:rows].tolist()
    before = model.lm_head.weight.detach().clone()
    trainer.train()
    assert not (before == model.lm_head.weight).all()


def test_rows_by_ids_load_with_their_labels(written, tmp_path):
    folder, tokenizer, _ = written
    loaded = datasets.load_dataset(
        "parquet", data_files=str(folder / "repeat_ids.parquet"), split="train", cache_dir=str(tmp_path)
    )
    assert loaded.column_names == ["input_ids", "labels"]
    assert {label for row in loaded for label in row["labels"]} == {-100, tokenizer.token_to_id("<|start|>")}


def test_llama_factory_finds_every_key_it_reads(written):
    folder, _, result = written
    entry = json.loads((folder / "dataset_info.json").read_text())["repeat"]
    # The keys that LLaMA-Factory documents for messages in the OpenAI form (its data/README.md).
    assert set(entry) <= {
        "file_name",
        "formatting",
        "ranking",
        "subset",
        "split",
        "folder",
        "columns",
        "tags",
    }
    assert entry["formatting"] == "sharegpt"
    assert (folder / entry["file_name"]).is_file()
    message = json.loads((folder / entry["file_name"]).read_text("utf-8").split("\n")[0])[
        entry["columns"]["messages"]
    ]
    tags = entry["tags"]
    assert set(tags) <= {f"{t}_tag" for t in ("role", "content", "user", "assistant", "system")}
    assert [m[tags["role_tag"]] for m in message] == [tags["user_tag"], tags["assistant_tag"]]
    assert message[1][tags["content_tag"]] == result.dialogues[0][1]["content"]


def test_axolotl_gets_keys_of_its_schema(written):
    folder, _, _ = written
    text, ids = yaml.safe_load((folder / "axolotl.yaml").read_text())["datasets"]
    # Fields of Axolotl's SFTDataset; pre-tokenized data has an empty type.
    known = {"path", "ds_type", "type", "field_messages", "message_property_mappings", "roles_to_train"}
    assert set(text) | set(ids) <= known | {"train_on_eos"}
    assert text["type"] == "chat_template"
    assert text["train_on_eos"] in ("all", "turn", "last")
    assert text["message_property_mappings"] == {"role": "role", "content": "content"}
    assert ids["type"] is None
    assert [p.rsplit("/", 1)[1] for p in (text["path"], ids["path"])] == [
        "repeat.jsonl",
        "repeat_ids.parquet",
    ]


def test_the_template_here_is_the_one_rendered_with(written):
    jinja2 = pytest.importorskip("jinja2")
    source = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    template = jinja2.Environment().from_string(source)
    dialogue = written[2].dialogues[0]
    assert template.render(messages=dialogue).encode() == ChatML().render(dialogue_of(dialogue)).pieces[0]
