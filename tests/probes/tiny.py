"""What these tests share: tokenizers and a random model made here, and a server of answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from coverage_job.probes.choose import ProbeToken, own_text

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "The label on the box says apple . Write the following string three times, separated by spaces",
    "箱の札には りんご と書いてあります。箱の札に書いてある文字は何ですか。一文で答えてください。",
    "箱子的标签上写着 苹果 。请把下面的字符串写三遍，用空格隔开",
    "На ярлыке коробки написано яблоко . Перепишите этот список без изменений",
    "상자의 이름표에는 사과 라고 적혀 있습니다. 다음 목록을 순서를 바꾸지 말고 그대로 옮겨 쓰세요.",
]


def byte_tokenizer(size: int = 700) -> Tokenizer:
    """A byte-level BPE tokenizer over a few sentences in five languages."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=1,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def as_tokens(ids: Iterable[int], tokenizer: Tokenizer, language: str = "und") -> list[ProbeToken]:
    """Tokens of given ids, with the text that has them."""
    return [ProbeToken(i, own_text(tokenizer, i), language) for i in ids]


def save_model(folder: Path, tokenizer: Tokenizer, *, chat: bool = True) -> Path:
    """A random two-layer Llama with untied matrices, as a transformers checkpoint."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|end|>")
    if chat:
        fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


class Server:
    """An OpenAI-compatible server whose answers a function makes.

    answer: (body, how many requests came before) -> (status, text, headers).
    """

    def __init__(self, answer: Callable[[dict, int], tuple[int, str, dict[str, str]]]) -> None:
        self.bodies: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self._now = 0
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(outer.bodies)
                    outer.bodies.append(body)
                    outer.headers.append(dict(self.headers))
                    outer._now += 1
                    outer.most_at_once = max(outer.most_at_once, outer._now)
                status, text, headers = answer(body, number)
                with lock:
                    outer._now -= 1
                if self.path.endswith("chat/completions"):
                    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                else:
                    choice = {"text": text, "finish_reason": "stop"}
                data = json.dumps({"choices": [choice]} if status == 200 else {"error": text}).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(answer: Callable[[dict, int], tuple[int, str, dict[str, str]]]) -> Iterator[Server]:
    server = Server(answer)
    try:
        yield server
    finally:
        server.close()
