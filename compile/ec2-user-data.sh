#!/bin/bash
# User data of an EC2 instance with the AWS Neuron Deep Learning AMI: compiles one spec, then serves
# it on port 8000 of the instance itself. What it says goes to /var/log/neuron-spec.log.
#
# Fill in the three lines below. The root volume has to hold the weights twice (cache and shards).
set -euo pipefail
SOURCE="s3://YOUR-BUCKET/neuron-spec.tar.gz"   # an archive of this repository
SPEC="llama-3.1-8b-eagle.trn2"                 # a file of compile/, without .toml
TOKEN_PARAMETER="/neuron-spec/hf-token"        # SSM parameter with a Hugging Face token

exec >> /var/log/neuron-spec.log 2>&1
WORK=/opt/neuron-spec
mkdir -p "$WORK/source"
aws s3 cp "$SOURCE" - | tar -xz --strip-components=1 -C "$WORK/source"
cd "$WORK"

# The AMI's environment for NxD Inference on PyTorch 2.9 (SDK 2.28 and 2.29); its packages stay as
# they are.
source /opt/aws_neuronx_venv_pytorch_2_9_nxd_inference/bin/activate
python -m pip freeze | grep '==' > image.txt
python -m pip install --constraint image.txt "$WORK/source[serve]"

export HF_HOME="$WORK/huggingface"
HF_TOKEN=$(aws ssm get-parameter --with-decryption --name "$TOKEN_PARAMETER" \
    --query Parameter.Value --output text)
export HF_TOKEN
neuron-spec prepare "source/compile/$SPEC.toml"
neuron-spec check "source/compile/$SPEC.toml"
neuron-spec compile "source/compile/$SPEC.toml" --backend neuron
exec neuron-spec serve "build/$SPEC/artifact" --host 127.0.0.1 --port 8000
